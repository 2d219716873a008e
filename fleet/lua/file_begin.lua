-- Room for a file is taken before its bytes come, in pieces; without a commit it goes again.
-- KEYS 1 file, 2 the accounts, 3 the ends
-- ARGV 2 id, 3 tenant, 4 message, 5 bytes, 6 time to commit ms, 7 bound of the tenant, 8 bound of all
-- -> OK, DUP (begun or there already), TENANT or ALL (full, with the bytes in use)
local now = clock()
local id, tenant, bytes = ARGV[2], ARGV[3], tonumber(ARGV[5])
if redis.call('EXISTS', KEYS[1]) == 1 then return {'DUP', 0} end
local used = redis.call('HMGET', KEYS[2], '@' .. tenant, '*')
local mine, all = tonumber(used[1] or 0), tonumber(used[2] or 0)
if mine + bytes > tonumber(ARGV[7]) then return {'TENANT', mine} end
if all + bytes > tonumber(ARGV[8]) then return {'ALL', all} end
redis.call('HSET', KEYS[1], 'm', ARGV[4], 'tenant', tenant, 'bytes', num(bytes), 'expires', num(now + tonumber(ARGV[6])))
redis.call('PEXPIRE', KEYS[1], num(tonumber(ARGV[6]) + FILE_SLACK_MS))
account(KEYS[2], id, tenant, bytes)
redis.call('ZADD', KEYS[3], num(now + tonumber(ARGV[6])), id)
return {'OK', mine + bytes}
