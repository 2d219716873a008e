-- How far a load is. KEYS 1 load, 2 bell; ARGV 2 progress, 3 ttl, 4 model
redis.call('HSET', KEYS[1], 'p', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
ring(KEYS[2], 'load', ARGV[4])
return 1
