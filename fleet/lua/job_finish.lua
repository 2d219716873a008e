-- A worker's answer ends the job.
-- KEYS places; ARGV 2 id, 3 owner, 4 attempt, 5 state, 6 HTTP status, 7 code, 8 message, 9 encoded usage, 10 tokens, 11 result
-- -> 1, also when it was written before by the same attempt; 0 fenced out
local now = clock()
go_on_when_full(KEYS[T_LEASE])
local j = job()
local mark = 'finish|' .. ARGV[3] .. '|' .. ARGV[4]
if j and j.last == mark then return 1 end
if not holds(j, ARGV[3], ARGV[4]) then return 0 end
redis.call('HSET', KEYS[T_HASH], 'http', ARGV[6], 'usage', ARGV[9], 'tokens', ARGV[10], 'last', mark)
conclude(ARGV[2], j, ARGV[5], now, ARGV[7], ARGV[8], ARGV[11])
return 1
