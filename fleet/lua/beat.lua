-- A worker lives. Its hash stays beyond its deadline: after an outage of Redis nothing may look dead before it had the
-- chance to speak.
-- What the run of the worker before this one said last is kept: it tells what died with it.
-- Two runs of one name may speak at once where a pod is replaced while it still drains: the later one is the worker.
-- KEYS 1 workers, 2 its hash, 3 pulse, 4 bell
-- ARGV 2 worker, 3 ttl, 4 beat, 5 ms that the hash is kept, 6 '1' to ring, 7 its boot, 8 since when it runs
-- -> now, or -1 when a later run has taken the name over
local now = clock()
go_on_when_full(KEYS[1])
pulse(KEYS[3], now)
local before = redis.call('HMGET', KEYS[2], 'boot', 'beat', 'since')
if before[2] and before[1] ~= ARGV[7] and tonumber(before[3] or 0) > tonumber(ARGV[8])
  and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or 0) >= now then return -1 end
redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[3])), ARGV[2])
if before[2] and before[1] ~= ARGV[7] then redis.call('HSET', KEYS[2], 'former', before[2]) end
redis.call('HSET', KEYS[2], 'beat', ARGV[4], 'at', num(now), 'boot', ARGV[7], 'since', ARGV[8])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if ARGV[6] == '1' then ring(KEYS[4], 'beat', '') end
return num(now)
