-- KEYS 1 commands, 2 bell; ARGV 2 command, 3 ttl, 4 most that wait -> 1, or 0 when too many wait
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
ring(KEYS[2], 'command', '')
return 1
