-- A job goes on to another model, behind those that wait there: one that waits, by the leader; one that runs, by its worker;
-- one whose last attempt was lost with its worker, by anybody.
-- KEYS places, 20 leader, 21 ready, 22 virtual time and 23 since of the other model
-- ARGV 2 id, 3 owner (the leader's, or the worker's run; '' for a lease that ran out), 4 term or '' without a leader, 5 attempt, 6 the model it is at, 7 where in
--      its chain that is, 8 the other model, 9 where that is, 10 reason, 11 cost / weight
-- -> 1 when it did, 0: it is no longer there, -1: the term is over
local now, _, micros = clock()
local id = ARGV[2]
local waits, lost = ARGV[4] ~= '', ARGV[3] == ''
if waits and not leads(KEYS[20], ARGV[3], ARGV[4], now) then return -1 end
go_on_when_full(KEYS[T_LEASE])
local j = job()
if not j or j.model ~= ARGV[6] or (j.chain or '') ~= ARGV[7] or j.cancel then return 0 end
if waits and not waits_here(j, id) then return 0 end
if lost then
  if tonumber(j.spent) < tonumber(j.max_attempts) then return 0 end
  if not lease_over(j, id, now, pulse(KEYS[J_PULSE], now)) then return 0 end
elseif not waits and not holds(j, ARGV[3], ARGV[5]) then
  return 0
end
redis.call('ZREM', KEYS[T_LEASE], id)
unqueue(KEYS[T_READY], KEYS[T_VT], KEYS[T_SINCE], id)
local place = next_place(KEYS[22], j.tenant, tonumber(ARGV[11]), micros)
take_place(KEYS[22], j.tenant, place)
redis.call('ZADD', KEYS[21], place.score, id)
redis.call('ZADD', KEYS[23], j.created, id)
-- The other model knows nothing of the loads and attempts that failed before.
redis.call('HSET', KEYS[T_HASH], 'state', 'queued', 'model', ARGV[8], 'score', place.score, 'start', num(place.start),
  'epoch', place.epoch, 'chain', ARGV[9], 'why', ARGV[10], 'moved', num(now), 'loads', 0, 'spent', 0)
redis.call('HDEL', KEYS[T_HASH], 'load', 'grant', 'owner', 'worker', 'replica')
redis.call('HSET', KEYS[J_DEMAND], ARGV[8], num(now))
ring(KEYS[J_BELL], 'enqueue', ARGV[8])
return 1
