-- KEYS places; ARGV 2 id, 3 tenant, 4 code, 5 message -> 'cancelled' | 'cancelling' | 'ended' | 'unknown' | 'moved'
local now = clock()
go_on_when_full(KEYS[T_LEASE])
local j = job()
if not j or j.tenant ~= ARGV[3] then return 'unknown' end
if j.state == 'queued' then
  if not waits_here(j, ARGV[2]) then return 'moved' end
  conclude(ARGV[2], j, 'cancelled', now, ARGV[4], ARGV[5], '')
  return 'cancelled'
end
if j.state ~= 'in_progress' then return 'ended' end
redis.call('HSET', KEYS[T_HASH], 'cancel', '1')
ring(KEYS[J_BELL], 'cancel', j.model)
return 'cancelling'
