-- What the leader decided, all of it or none, and only in its own term.
-- KEYS 1 leader, 2 bell, 3 wanted, 4.. hashes
-- ARGV 2 owner, 3 term, 4 reason of the hint, 5 its model, then for each hash the worker it is for or '',
--      then triples: index into the hashes, field, value. An empty field clears the hash, an empty value deletes the field.
-- -> 1, or -1 when the term is over
local now = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return -1 end
redis.call('SREM', KEYS[3], '') -- see go_on_when_full
local hashes = #KEYS - 3
for i = 6 + hashes, #ARGV, 3 do
  local key, field, value = KEYS[3 + tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]
  if field == '' then
    redis.call('DEL', key)
  elseif value == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, value, '@term', ARGV[3])
  end
end
for i = 1, hashes do
  local key, worker = KEYS[3 + i], ARGV[5 + i]
  if redis.call('HLEN', key) == 1 and redis.call('HEXISTS', key, '@term') == 1 then redis.call('DEL', key) end
  if worker ~= '' then
    redis.call(redis.call('EXISTS', key) == 1 and 'SADD' or 'SREM', KEYS[3], worker)
  end
end
ring(KEYS[2], ARGV[4], ARGV[5])
return 1
