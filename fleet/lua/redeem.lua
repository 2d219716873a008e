-- The gateway's connection is the lease from now on; the ticket is done with, whatever became of it meanwhile.
-- KEYS places; ARGV 2 id, 3 model, 4 band, 5 gateway, 6 grant -> 1 when this grant was the ticket's, else 0
go_on_when_full(KEYS[T_LEASE])
if not same(ARGV[3], ARGV[4], ARGV[5]) then return 0 end
local t = redis.call('HMGET', KEYS[T_HASH], 'state', 'grant')
remove(ARGV[2])
return (t[1] == 'granted' and t[2] == ARGV[6]) and 1 or 0
