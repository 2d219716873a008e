-- An attempt ended without an answer, by its worker's word or because its lease ran out: back to the old place, or the end.
-- KEYS places; ARGV 2 id, 3 owner or '' for a lease that ran out, 4 attempt, 5 '1' when the attempt counts, 6 reason, 7 code of
--      the last attempt's failure, 8 code of a cancelled job -> 'returned' | 'failed' | 'cancelled' | 'no'
local now = clock()
local id = ARGV[2]
go_on_when_full(KEYS[T_LEASE])
local grace = pulse(KEYS[J_PULSE], now)
local j = job()
if not j then return 'no' end
local mark = 'return|' .. ARGV[3] .. '|' .. ARGV[4]
if ARGV[3] == '' then
  if not lease_over(j, id, now, grace) then return 'no' end
elseif not holds(j, ARGV[3], ARGV[4]) then
  return j.last == mark and 'returned' or 'no'
end
local reason = ARGV[6]
if ARGV[3] == '' then reason = 'its worker did not renew the lease' end
local spent = tonumber(j.spent) - (ARGV[5] == '1' and 0 or 1)
redis.call('HSET', KEYS[T_HASH], 'spent', spent, 'last', mark)
if j.cancel then
  conclude(id, j, 'cancelled', now, ARGV[8], reason, '')
  return 'cancelled'
end
if ARGV[5] == '1' and spent >= tonumber(j.max_attempts) then
  conclude(id, j, 'failed', now, ARGV[7], 'all ' .. spent .. ' attempts ended without an answer; the last: ' .. reason, '')
  return 'failed'
end
local score, start, epoch = old_place(KEYS[T_VT], j.score, j.start, j.epoch)
redis.call('ZREM', KEYS[T_LEASE], id)
redis.call('ZADD', KEYS[T_READY], score, id)
redis.call('ZADD', KEYS[T_SINCE], j.created, id)
redis.call('HSET', KEYS[T_HASH], 'state', 'queued', 'score', score, 'start', start, 'epoch', epoch, 'reason', reason)
redis.call('HDEL', KEYS[T_HASH], 'grant', 'owner', 'worker', 'replica')
if j.due and spent == 0 then redis.call('ZADD', KEYS[J_DUE], j.due, id) end -- it never really started
redis.call('HSETNX', KEYS[J_DEMAND], j.model, num(now)) -- a removed model's queue is found by it
ring(KEYS[J_BELL], 'reap', j.model)
return 'returned'
