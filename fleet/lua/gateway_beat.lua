-- A gateway lives, and compares what it holds with what is here.
-- KEYS 1 gateways, 2 held, 3 grants, 4 pulse; ARGV 2 gateway, 3 ttl, 4 '1' when it lists all that it holds, 5.. the tickets
-- -> {tickets that are nowhere, tickets here that it does not hold}
local now = clock()
go_on_when_full(KEYS[1])
pulse(KEYS[4], now)
redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[3])), ARGV[2])
redis.call('PEXPIRE', KEYS[3], MISSED_MS)
local here, missing, unknown = {}, {}, {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do here[id] = true end
for i = 5, #ARGV do
  if here[ARGV[i]] then here[ARGV[i]] = nil else missing[#missing + 1] = ARGV[i] end
end
if ARGV[4] == '1' then
  for id in pairs(here) do unknown[#unknown + 1] = id end
end
return {missing, unknown}
