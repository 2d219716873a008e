-- What there is to reap. Changes nothing but the pulse.
-- KEYS 1 lease, 2 gateways, 3 workers, 4 pulse; ARGV 2 limit, 3 ms that a dead worker is remembered
-- -> {expired tickets, dead gateways, forgotten workers}
local now = clock()
go_on_when_full(KEYS[1])
if pulse(KEYS[4], now) then
  return {{}, redis.call('ZRANGEBYSCORE', KEYS[2], 0, 0, 'LIMIT', 0, ARGV[2]), {}}
end
return {
  redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', num(now), 'LIMIT', 0, ARGV[2]),
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. num(now), 'LIMIT', 0, ARGV[2]),
  redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. num(now - tonumber(ARGV[3])), 'LIMIT', 0, ARGV[2]),
}
