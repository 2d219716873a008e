-- One more duration of a phase; the oldest beyond the limit is forgotten.
-- KEYS 1 history; ARGV 2 field, 3 seconds, 4 schema version, 5 limit, 6 ms to keep a machine that loads nothing more
local data = redis.call('HGET', KEYS[1], ARGV[2])
local seconds = {}
if data then
  local ok, old = pcall(cmsgpack.unpack, data)
  if ok and type(old) == 'table' and old.v == tonumber(ARGV[4]) then seconds = old.seconds end
end
seconds[#seconds + 1] = tonumber(ARGV[3])
while #seconds > tonumber(ARGV[5]) do table.remove(seconds, 1) end
redis.call('HSET', KEYS[1], ARGV[2], cmsgpack.pack({v = tonumber(ARGV[4]), seconds = seconds}))
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return #seconds
