-- A piece of a file's bytes, at its place: repeating it changes nothing.
-- KEYS 1 file, 2 its data; ARGV 2 offset, 3 the piece
-- -> 1, or 0 when the file is gone or complete
local f = redis.call('HMGET', KEYS[1], 'bytes', 'listed')
if not f[1] then return 0 end
if f[2] then return tonumber(f[1]) >= tonumber(ARGV[2]) + #ARGV[3] and 1 or 0 end
redis.call('SETRANGE', KEYS[2], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return 1
