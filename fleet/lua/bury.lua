-- A ticket whose gateway is dead. KEYS places; ARGV 2 id, 3 model, 4 band, 5 gateway -> 1 when it was removed
local now = clock()
go_on_when_full(KEYS[T_LEASE])
local grace = pulse(KEYS[T_PULSE], now)
if alive(KEYS[T_GW], ARGV[5], now, grace) or not same(ARGV[3], ARGV[4], ARGV[5]) then return 0 end
remove(ARGV[2])
return 1
