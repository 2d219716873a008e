-- The operator's commands, for the leader alone.
-- KEYS 1 leader, 2 commands; ARGV 2 owner, 3 term -> the commands, or -1 when the term is over
local now = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return -1 end
local commands = redis.call('LRANGE', KEYS[2], 0, -1)
redis.call('DEL', KEYS[2])
return commands
