-- An ended job goes before its time. KEYS as job_forget; ARGV 2 id, 3 tenant -> 'deleted' | 'active' | 'unknown'
go_on_when_full(KEYS[1])
local t = redis.call('HMGET', KEYS[5], 'tenant', 'ended', 'bytes', 'out', 'gateway')
if t[1] ~= ARGV[3] or t[5] ~= JOB then return 'unknown' end
if not t[2] then return 'active' end
redis.call('ZREM', KEYS[1], ended_entry('j', ARGV[2], num(t[3] - t[4]), ARGV[3]))
charge(KEYS[2], ARGV[3], t[4] - t[3], 0)
forget(ARGV[2], ARGV[3])
return 'deleted'
