-- Nobody waits for a removed model any more: its queue need not be looked at again. Leader only.
-- KEYS 1 leader, 2 demand, 3 since, 4 since of jobs; ARGV 2 owner, 3 term, 4 model
-- -> 1 when it is forgotten, 0: somebody has come, -1: the term is over
local now = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return -1 end
if redis.call('EXISTS', KEYS[3]) == 1 or redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[4])
return 1
