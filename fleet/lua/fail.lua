-- Waiting tickets of a model leave the queue with a reason. Leader only.
-- KEYS 1 leader, 2 since, 3 lease, then for each ticket: hash, ready, vt, held, grants
-- ARGV 2 leader, 3 term, then for each ticket: id, gateway, encoded event -> tickets told, or -1 when the term is over
local now, real = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return -1 end
go_on_when_full(KEYS[3])
local told = 0
for i = 0, (#ARGV - 3) / 3 - 1 do
  local hash, ready, vt, held, grants = unpack(KEYS, 4 + 5 * i, 8 + 5 * i)
  local id, gateway, event = unpack(ARGV, 4 + 3 * i, 6 + 3 * i)
  local t = redis.call('HMGET', hash, 'state', 'gateway')
  if t[1] == 'ready' and t[2] == gateway and redis.call('ZSCORE', ready, id) then
    unqueue(ready, vt, KEYS[2], id)
    redis.call('DEL', hash)
    redis.call('SREM', held, id)
    tell(grants, real, event)
    told = told + 1
  end
end
return told
