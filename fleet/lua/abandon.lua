-- Cancel, but the place is kept a while for the client's retry.
-- KEYS places, 9 again; ARGV 2 id, 3 model, 4 band, 5 gateway, 6 ms to keep it -> 1 when the ticket was there
go_on_when_full(KEYS[T_LEASE])
if not same(ARGV[3], ARGV[4], ARGV[5]) then return 0 end
local t = redis.call('HMGET', KEYS[T_HASH], 'score', 'start', 'epoch')
remove(ARGV[2])
local place = cmsgpack.pack({model = ARGV[3], band = ARGV[4], score = t[1], start = t[2], epoch = t[3]})
redis.call('SET', KEYS[9], place, 'PX', ARGV[6])
return 1
