-- A file goes with all it has, and its bytes are given back.
-- KEYS 1 file, 2 its data, 3 the tenant's list, 4 the accounts, 5 the ends
-- ARGV 2 id, 3 1: only if its time is over
-- -> 1; 0 when there is none, or its time is not over; -1 while a batch reads it
local now = clock()
local id, overdue = ARGV[2], ARGV[3] == '1'
local f = redis.call('HMGET', KEYS[1], 'expires', 'refs')
local ends = redis.call('ZSCORE', KEYS[5], id)
if not ends and not f[1] then return 0 end
if tonumber(f[2] or 0) > 0 then return overdue and 0 or -1 end
if overdue and tonumber(ends or 0) > now then return 0 end
go_on_when_full(KEYS[5])
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], id)
redis.call('ZREM', KEYS[5], id)
release(KEYS[4], id)
return 1
