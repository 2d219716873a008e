-- A batch over a file that must be there until it has ended.
-- KEYS 1 batch, 2 batches at work, 3 the tenant's list, 4 input file, 5 its data, 6 the files' ends
-- ARGV 2 id, 3 tenant, 4 spec, 5 created ms, 6 life ms, 7 bound of batches at work, 8 input file's id,
--      9 how long any batch may be known, ms
-- -> OK, DUP, FILE (no such file of the tenant) or FULL
local now = clock()
local id, life = ARGV[2], tonumber(ARGV[6])
if redis.call('EXISTS', KEYS[1]) == 1 then return 'DUP' end
local f = redis.call('HMGET', KEYS[4], 'tenant', 'listed', 'expires')
if f[1] ~= ARGV[3] or not f[2] or tonumber(f[3]) <= now then return 'FILE' end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7]) then return 'FULL' end
redis.call('HSET', KEYS[1], 'spec', ARGV[4], 'state', 'validating', 'step', 0, 't:validating', num(now))
redis.call('PEXPIRE', KEYS[1], num(life))
redis.call('ZADD', KEYS[2], num(now), id)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', num(now - tonumber(ARGV[9])))
redis.call('ZADD', KEYS[3], ARGV[5], id)
redis.call('PEXPIRE', KEYS[3], num(life))
redis.call('HINCRBY', KEYS[4], 'refs', 1)
if tonumber(f[3]) < now + life then
  redis.call('HSET', KEYS[4], 'expires', num(now + life))
  redis.call('PEXPIRE', KEYS[4], num(life + FILE_SLACK_MS))
  redis.call('PEXPIRE', KEYS[5], num(life + FILE_SLACK_MS))
  redis.call('ZADD', KEYS[6], num(now + life), ARGV[8])
end
return 'OK'
