-- KEYS hook; ARGV 2 limit -> ids of the jobs whose next try is due, longest due first
local now = clock()
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', num(now), 'LIMIT', 0, tonumber(ARGV[2]))
