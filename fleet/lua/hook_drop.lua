-- The job is gone: nothing of it is left to tell.
-- KEYS hook, outbox, hooked; ARGV 2 job
go_on_when_full(KEYS[1])
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2], KEYS[3])
return 1
