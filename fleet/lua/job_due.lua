-- What there is to expire. Changes nothing.
-- KEYS 1 start deadlines, 2 ended; ARGV 2 limit -> {jobs past their start deadline, entries of `ended` whose time is over}
local now = clock()
return {
  redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', num(now), 'LIMIT', 0, ARGV[2]),
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', num(now), 'LIMIT', 0, ARGV[2]),
}
