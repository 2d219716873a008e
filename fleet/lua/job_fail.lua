-- A job that waits for a model that will not come ends. Leader only.
-- KEYS places, 20 leader; ARGV 2 id, 3 owner, 4 term, 5 code, 6 message -> 1 when it did, -1 when the term is over
local now = clock()
if not leads(KEYS[20], ARGV[3], ARGV[4], now) then return -1 end
go_on_when_full(KEYS[T_LEASE])
local j = job()
if not waits_here(j, ARGV[2]) then return 0 end
conclude(ARGV[2], j, 'failed', now, ARGV[5], ARGV[6], '')
return 1
