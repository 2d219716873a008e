-- All bytes are there: the file can be seen from now on.
-- KEYS 1 file, 2 its data, 3 the tenant's list, 4 the ends
-- ARGV 2 id, 3 created ms, 4 life ms, from then on
-- -> 1, or 0 when it is gone or not whole
local now = clock()
local f = redis.call('HMGET', KEYS[1], 'bytes', 'listed')
if not f[1] then return 0 end
if f[2] then return 1 end
if redis.call('STRLEN', KEYS[2]) ~= tonumber(f[1]) then return 0 end
list_file(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3], now, tonumber(ARGV[3]) + tonumber(ARGV[4]) - now)
return 1
