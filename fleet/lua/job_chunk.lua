-- A piece of a job's output. A repeat (its reply was lost) is known by its number.
-- KEYS 1 hash, 2 lease, 3 output, 4 store; ARGV 2 owner, 3 attempt, 4 seq, 5 data, 6 tokens so far, 7 most bytes of an attempt
-- -> 1, 0 fenced out, -1 too large
go_on_when_full(KEYS[T_LEASE])
local t = redis.call('HMGET', KEYS[T_HASH], 'state', 'owner', 'attempt', 'seq', 'tenant', 'run', 'out', 'bytes', 'chunks')
local size = #ARGV[5]
if not holds({state = t[1], owner = t[2], attempt = t[3]}, ARGV[2], ARGV[3]) then return 0 end
if tonumber(ARGV[4]) <= tonumber(t[4]) then return 1 end
if t[6] + size > tonumber(ARGV[7]) then return -1 end
redis.call('XADD', KEYS[3], ARGV[3] .. '-' .. ARGV[4], 'd', ARGV[5])
redis.call('HSET', KEYS[T_HASH], 'seq', ARGV[4], 'tokens', ARGV[6], 'run', num(t[6] + size), 'out', num(t[7] + size),
  'bytes', num(t[8] + size), 'chunks', num(t[9] + 1))
charge(KEYS[4], t[5], size, 0)
return 1
