-- KEYS 1 leader; ARGV 2 owner, 3 term -> 1 when the term was ours and is over now. The term's number stays.
local now = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return 0 end
redis.call('HSET', KEYS[1], 'deadline', '0')
return 1
