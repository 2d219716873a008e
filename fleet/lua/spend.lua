-- What a gateway has spent of a key's limit, by seconds, and what the others have. Written as it is in all, not as it
-- grows: a repeat changes nothing.
-- KEYS 1 spent, 2 gateways; ARGV 2 gateway, 3 second, 4 ms to keep, 5.. second, amount
-- -> {gateways alive, second, amount by others, ...}
local now = clock()
local second, others, old = tonumber(ARGV[3]), {}, {}
for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i] .. ':' .. ARGV[2], ARGV[i + 1]) end
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local at, gateway = string.match(fields[i], '^(%d+):(.*)$')
  if tonumber(at) <= second - 120 then
    old[#old + 1] = fields[i]
  elseif gateway ~= ARGV[2] then
    others[at] = (others[at] or 0) + tonumber(fields[i + 1])
  end
end
for _, field in ipairs(old) do redis.call('HDEL', KEYS[1], field) end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local out = {redis.call('ZCOUNT', KEYS[2], num(now), '+inf')}
for at, amount in pairs(others) do
  out[#out + 1] = at
  out[#out + 1] = num(amount)
end
return out
