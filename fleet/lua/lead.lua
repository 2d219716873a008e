-- Become or stay leader. A new term is above every earlier one even if Redis lost its last second or came back empty:
-- max(previous + 1, TIME in µs).
-- KEYS 1 leader, 2 gateways, 3 pulse; ARGV 2 owner, 3 ttl -> {term (text), 1 when it is ours, owner}
local now, _, micros = clock()
go_on_when_full(KEYS[2])
pulse(KEYS[3], now)
local l = redis.call('HMGET', KEYS[1], 'owner', 'term', 'deadline')
local term, live = tonumber(l[2] or 0), tonumber(l[3] or 0) >= now
if live and l[1] ~= ARGV[2] then return {l[2], 0, l[1]} end
if not live then term = math.max(term + 1, micros) end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'term', num(term), 'deadline', num(now + tonumber(ARGV[3])))
return {num(term), 1, ARGV[2]}
