-- The output (kind 'o') or all (kind 'j') that is left of an ended job goes.
-- KEYS 1 ended, 2 store, 3 list, 4 hooks, 5 hash, 6 output, 7.. the job's other keys
-- ARGV 2 entry of `ended`, 3 kind, 4 id, 5 bytes, 6 tenant -> 1 when it went
local now = clock()
go_on_when_full(KEYS[1])
local at = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]))
if not at or at > now then return 0 end
redis.call('ZREM', KEYS[1], ARGV[2])
charge(KEYS[2], ARGV[6], -tonumber(ARGV[5]), 0)
if ARGV[3] == 'j' then
  forget(ARGV[4], ARGV[6])
  return 1
end
redis.call('DEL', KEYS[6])
local bytes = redis.call('HGET', KEYS[5], 'bytes')
if bytes then redis.call('HSET', KEYS[5], 'out', 0, 'bytes', num(bytes - ARGV[5])) end
return 1
