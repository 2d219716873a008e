-- A gateway takes a batch to work on it, or goes on working.
-- KEYS 1 batch, 2 batches at work; ARGV 2 id, 3 owner, 4 lease ms
-- -> 1, or 0 when another one has it or it has ended
local now = clock()
local due = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[2]))
if not due then return 0 end
go_on_when_full(KEYS[2])
local owner = redis.call('HGET', KEYS[1], 'owner')
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[2])
  return 0
end
if owner ~= ARGV[3] and due > now then return 0 end
redis.call('ZADD', KEYS[2], num(now + tonumber(ARGV[4])), ARGV[2])
redis.call('HSET', KEYS[1], 'owner', ARGV[3])
return 1
