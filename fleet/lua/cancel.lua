-- KEYS places; ARGV 2 id, 3 model, 4 band, 5 gateway -> 1 when the ticket was there
go_on_when_full(KEYS[T_LEASE])
if not same(ARGV[3], ARGV[4], ARGV[5]) then return 0 end
remove(ARGV[2])
return 1
