-- KEYS ready of all bands, highest first; ARGV 2.. tickets -> 0-based position over all bands for each, -1 when not waiting
local before, out = {}, {}
local sum = 0
for i = 1, #KEYS do
  before[i] = sum
  sum = sum + redis.call('ZCARD', KEYS[i])
end
for a = 2, #ARGV do
  local position = -1
  for i = 1, #KEYS do
    local rank = redis.call('ZRANK', KEYS[i], ARGV[a])
    if rank then
      position = before[i] + rank
      break
    end
  end
  out[a - 1] = position
end
return out
