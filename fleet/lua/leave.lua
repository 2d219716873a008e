-- A worker is gone; its last word stays for as long as it would have.
-- KEYS 1 workers, 2 its hash, 3 bell; ARGV 2 worker, 3 its boot -> 0 when a later run has the name by now
if redis.call('HGET', KEYS[2], 'boot') ~= ARGV[3] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[2])
local last = redis.call('HGET', KEYS[2], 'beat')
if last then redis.call('HSET', KEYS[2], 'former', last) end
redis.call('HDEL', KEYS[2], 'beat', 'at', 'boot', 'since')
ring(KEYS[3], 'leave', '')
return 1
