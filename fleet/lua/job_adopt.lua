-- A gateway's ticket becomes a job, at the same place and age. Once the job is there, no grant can be offered to the ticket.
-- KEYS 1..19 places, 20 the ticket's hash, 21 since of tickets, 22 held, 23.. ready of all bands
-- ARGV 2..17 see create(), 18 ticket, 19 gateway -> as job_submit, or {'GONE', 0}: it does not wait there
local now = clock()
local id, ticket = ARGV[2], ARGV[18]
local refused = refusal(id)
if refused then return refused end
local t = redis.call('HMGET', KEYS[20], 'state', 'model', 'band', 'gateway', 'score', 'start', 'epoch', 'created')
if t[1] ~= 'ready' or t[2] ~= ARGV[3] or t[3] ~= ARGV[5] or t[4] ~= ARGV[19] then return {'GONE', 0} end
create(id, tonumber(t[8]), t[5], t[6], t[7])
redis.call('ZREM', KEYS[T_READY], ticket)
redis.call('ZREM', KEYS[21], ticket)
redis.call('SREM', KEYS[22], ticket)
redis.call('DEL', KEYS[20])
redis.call('HSET', KEYS[J_DEMAND], ARGV[3], num(now))
ring(KEYS[J_BELL], 'enqueue', ARGV[3])
return {'OK', position(id, KEYS[T_READY], 23)}
