-- One delivery, the first of its job, to whoever claims it; again due when the lease has passed.
-- KEYS hook, outbox, hooked, job; ARGV 2 job, 3 claim, 4 lease ms -> {event, created ms, seq, tries, now} or false
local now = clock()
go_on_when_full(KEYS[1])
local due = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]))
local state = redis.call('HMGET', KEYS[3], 'claim', 'seq', 'tries')
if not due or (due > now and state[1] ~= ARGV[3]) then return false end
local head = redis.call('LINDEX', KEYS[2], 0)
if not head then  -- the job's time is over
  redis.call('ZREM', KEYS[1], ARGV[2])
  return false
end
redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[4])), ARGV[2])
redis.call('HSET', KEYS[3], 'claim', ARGV[3])
-- As long as the job can be looked at, and a day.
local kept = tonumber(redis.call('HGET', KEYS[4], 'retention') or 0) + 86400000
redis.call('PEXPIRE', KEYS[3], num(math.max(kept, OUTBOX_MS)))
local event, at = string.match(head, '^(%S+) (%S+)$')
return {event, at, tonumber(state[2] or 0), tonumber(state[3] or 0), num(now)}
