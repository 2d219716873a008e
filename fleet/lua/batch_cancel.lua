-- The client wants no more of it; whoever works on it ends it in order.
-- KEYS 1 batch, 2 batches at work; ARGV 2 id
-- -> 1, or 0 when it has ended or is gone
local now = clock()
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'cancelling' then return 1 end
if state ~= 'validating' and state ~= 'in_progress' and state ~= 'finalizing' then return 0 end
go_on_when_full(KEYS[2])
redis.call('HSET', KEYS[1], 'state', 'cancelling', 't:cancelling', num(now))
redis.call('ZADD', KEYS[2], num(now), ARGV[2])
return 1
