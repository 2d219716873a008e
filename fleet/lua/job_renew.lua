-- Leases of jobs run on. KEYS 1 lease, 2 pulse, 3.. hashes; ARGV 2 owner, 3 ms, then id and attempt of each
-- -> 'ok' | 'lost' | 'cancel' for each
local now = clock()
go_on_when_full(KEYS[1])
pulse(KEYS[2], now)
local out = {}
for i = 1, #KEYS - 2 do
  local id, attempt = ARGV[2 + 2 * i], ARGV[3 + 2 * i]
  local t = redis.call('HMGET', KEYS[2 + i], 'state', 'owner', 'attempt', 'cancel')
  if t[1] == 'in_progress' and t[2] == ARGV[2] and t[3] == attempt then
    redis.call('ZADD', KEYS[1], 'XX', num(now + tonumber(ARGV[3])), id)
    out[i] = t[4] and 'cancel' or 'ok'
  else
    out[i] = 'lost'
  end
end
return out
