-- A grant that was not redeemed in time, or that its gateway declines: back to the old place, or away with a dead gateway.
-- KEYS places, 9 bell, 10 demand; ARGV 2 id, 3 model, 4 band, 5 gateway, 6 the declined grant or '' -> 'returned' | 'dropped' | 'no'
local now = clock()
local id = ARGV[2]
go_on_when_full(KEYS[T_LEASE])
local grace = pulse(KEYS[T_PULSE], now)
local deadline = tonumber(redis.call('ZSCORE', KEYS[T_LEASE], id) or 0)
local t = redis.call('HMGET', KEYS[T_HASH], 'state', 'grant', 'score', 'epoch', 'created', 'start')
if t[1] ~= 'granted' or deadline == 0 or not same(ARGV[3], ARGV[4], ARGV[5]) then return 'no' end
if ARGV[6] == '' then
  if grace or deadline > now then return 'no' end
elseif ARGV[6] ~= t[2] then
  return 'no'
end
if not alive(KEYS[T_GW], ARGV[5], now, grace) then
  remove(id)
  return 'dropped'
end
local score, start, epoch = old_place(KEYS[T_VT], t[3], t[6], t[4])
redis.call('ZREM', KEYS[T_LEASE], id)
redis.call('ZADD', KEYS[T_READY], score, id)
redis.call('ZADD', KEYS[T_SINCE], t[5], id)
redis.call('HSET', KEYS[T_HASH], 'state', 'ready', 'score', score, 'start', start, 'epoch', epoch)
redis.call('HDEL', KEYS[T_HASH], 'grant', 'worker', 'replica')
redis.call('HSETNX', KEYS[10], ARGV[3], num(now)) -- a removed model's queue is found by it
ring(KEYS[9], 'reap', ARGV[3])
return 'returned'
