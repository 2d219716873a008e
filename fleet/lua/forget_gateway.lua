-- The last of a dead gateway, once none of its tickets is left.
-- KEYS 1 gateways, 2 held, 3 grants, 4 pulse; ARGV 2 gateway -> 1 when it is gone
local now = clock()
go_on_when_full(KEYS[1])
if alive(KEYS[1], ARGV[2], now, pulse(KEYS[4], now)) or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[3])
return 1
