-- KEYS 1 workers, 2 its hash; ARGV 2 worker, 3 ms that a dead worker is remembered -> 1 when it is gone
local now = clock()
local deadline = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or 0)
if deadline >= now - tonumber(ARGV[3]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
return 1
