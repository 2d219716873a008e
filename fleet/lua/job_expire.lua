-- A job that was not started in time ends. KEYS places; ARGV 2 id, 3 code, 4 message -> 1 when it did
local now = clock()
go_on_when_full(KEYS[T_LEASE])
local j = job()
if not waits_here(j, ARGV[2]) or not j.due or tonumber(j.spent) > 0 or tonumber(j.due) > now then
  return 0
end
conclude(ARGV[2], j, 'expired', now, ARGV[3], ARGV[4], '')
return 1
