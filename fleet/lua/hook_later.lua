-- Another time: after a failed try (spent 1), or because its host is busy or down (spent 0).
-- KEYS hook, hooked; ARGV 2 job, 3 claim, 4 delay ms, 5 spent, 6 last error -> 1, or 0 where another holds it
local now = clock()
go_on_when_full(KEYS[1])
if redis.call('HGET', KEYS[2], 'claim') ~= ARGV[3] then return 0 end
if ARGV[5] == '1' then
  redis.call('HINCRBY', KEYS[2], 'tries', 1)
  redis.call('HINCRBY', KEYS[2], 'tried', 1)
  redis.call('HSET', KEYS[2], 'last_error', ARGV[6])
end
redis.call('HDEL', KEYS[2], 'claim')  -- last: an empty hash would lose its time to live
redis.call('ZADD', KEYS[1], 'XX', num(now + tonumber(ARGV[4])), ARGV[2])
return 1
