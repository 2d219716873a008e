-- Deadline 0: dead at once, and still listed, so that a reap finishes what the gateway could not.
-- KEYS 1 gateways; ARGV 2 gateway
redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[2])
return 1
