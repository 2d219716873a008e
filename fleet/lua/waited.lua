-- Who waited for a wake. A waiter that is told of again counts once; beyond those kept by name only the number grows.
-- KEYS 1 wakes of the replica; ARGV 2 when it was ready, ms; 3 waiters kept of a wake; 4 ms to keep; 5… id, waiter, …
local count = ARGV[2] .. '#'
local n = tonumber(redis.call('HGET', KEYS[1], count) or 0)
for i = 5, #ARGV, 2 do
  local field = ARGV[2] .. '|' .. ARGV[i]
  if redis.call('HEXISTS', KEYS[1], field) == 0 then
    n = n + 1
    if n <= tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], field, ARGV[i + 1]) end
  end
end
redis.call('HSET', KEYS[1], count, n)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return n
