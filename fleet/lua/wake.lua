-- One wake of a replica: what it was made of. May be said again: the last word counts, and it is listed once.
-- KEYS 1 wakes of the replica, 2 the newest of the fleet
-- ARGV 2 when it was ready, ms; 3 the wake; 4 its line in the list; 5 lines kept; 6 wakes kept of a replica; 7 ms to keep
local new = redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
if new == 1 then
  redis.call('LPUSH', KEYS[2], ARGV[4])
  redis.call('LTRIM', KEYS[2], 0, ARGV[5] - 1)
  local fields = redis.call('HKEYS', KEYS[1])
  local times = {}
  for _, field in ipairs(fields) do
    if string.match(field, '^%d+$') then times[#times + 1] = tonumber(field) end
  end
  if #times > tonumber(ARGV[6]) then
    table.sort(times)
    local last = times[#times - ARGV[6]] -- this one and all before it go, with whoever waited for them
    for _, field in ipairs(fields) do
      if tonumber(string.match(field, '^%d+')) <= last then redis.call('HDEL', KEYS[1], field) end
    end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return new
