-- The first event is dealt with, told or given up; the next one is due at once.
-- KEYS hook, outbox, hooked; ARGV 2 job, 3 claim, 4 delivered | given_up, 5 last error -> 1, or 0 where another holds it
local now = clock()
go_on_when_full(KEYS[1])
if redis.call('HGET', KEYS[3], 'claim') ~= ARGV[3] then return 0 end
redis.call('LPOP', KEYS[2])
redis.call('HINCRBY', KEYS[3], 'seq', 1)
redis.call('HINCRBY', KEYS[3], ARGV[4], 1)
redis.call('HINCRBY', KEYS[3], 'tried', 1)
redis.call('HSET', KEYS[3], 'last_error', ARGV[5])
redis.call('HDEL', KEYS[3], 'claim', 'tries')  -- last: an empty hash would lose its time to live
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('ZADD', KEYS[1], num(now), ARGV[2])
else
  redis.call('ZREM', KEYS[1], ARGV[2])
end
return 1
