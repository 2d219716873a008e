-- One step of a batch by the gateway that has it: results go into the output files, the cursor moves, states follow each
-- other. All of it or nothing, and the same step again changes nothing.
-- KEYS 1 batch, 2 batches at work, 3 output file, 4 its data, 5 error file, 6 its data, 7 the accounts, 8 the ends,
--      9 the tenant's files, 10 input file
-- ARGV 2 id, 3 owner, 4 this step's number, 5 the state it starts from, 6 the state it ends in, 7 next look in ms,
--      8 tenant, 9 output piece, 10 error piece, 11 output file's id, 12 its message, 13 error file's id, 14 its message,
--      15 life of the files while it works ms, 16 life of files and batch after the end ms,
--      17 1: it ends here, 18 bound of the tenant's bytes or 0, then fields and values
-- -> OK; LOST: another gateway has it, or it was cancelled in between; FULL: the pieces do not fit
local now = clock()
local id = ARGV[2]
local b = redis.call('HMGET', KEYS[1], 'owner', 'step', 'state')
if b[1] ~= ARGV[3] then return 'LOST' end
if b[2] == ARGV[4] then return 'OK' end
if tonumber(b[2]) ~= tonumber(ARGV[4]) - 1 or b[3] ~= ARGV[5] then return 'LOST' end

local bound = tonumber(ARGV[18])
if bound > 0 and tonumber(redis.call('HGET', KEYS[7], '@' .. ARGV[8]) or 0) + #ARGV[9] + #ARGV[10] > bound then
  return 'FULL'
end

-- The first write is one that a full Redis refuses, if there is any: then nothing of this has happened.
local function append(file, data, file_id, message, piece)
  if piece == '' then return end
  redis.call('APPEND', data, piece)
  if redis.call('EXISTS', file) == 0 then
    redis.call('HSET', file, 'm', message, 'tenant', ARGV[8], 'bytes', 0)
  end
  local life = tonumber(ARGV[15])
  redis.call('HINCRBY', file, 'bytes', #piece)
  redis.call('HSET', file, 'expires', num(now + life))
  redis.call('PEXPIRE', file, num(life + FILE_SLACK_MS))
  redis.call('PEXPIRE', data, num(life + FILE_SLACK_MS))
  redis.call('ZADD', KEYS[8], num(now + life), file_id)
  account(KEYS[7], file_id, ARGV[8], #piece)
end
append(KEYS[3], KEYS[4], ARGV[11], ARGV[12], ARGV[9])
append(KEYS[5], KEYS[6], ARGV[13], ARGV[14], ARGV[10])

go_on_when_full(KEYS[2])
for i = 19, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'step', ARGV[4], 'state', ARGV[6])
if ARGV[6] ~= ARGV[5] then redis.call('HSET', KEYS[1], 't:' .. ARGV[6], num(now)) end
if ARGV[17] ~= '1' then
  redis.call('ZADD', KEYS[2], num(now + tonumber(ARGV[7])), id)
  return 'OK'
end
redis.call('ZREM', KEYS[2], id)
redis.call('PEXPIRE', KEYS[1], ARGV[16])
if redis.call('EXISTS', KEYS[10]) == 1 then redis.call('HINCRBY', KEYS[10], 'refs', -1) end
for i = 0, 1 do
  if redis.call('EXISTS', KEYS[3 + 2 * i]) == 1 then
    list_file(KEYS[3 + 2 * i], KEYS[4 + 2 * i], KEYS[9], KEYS[8], ARGV[11 + 2 * i], now, now, tonumber(ARGV[16]))
  end
end
return 'OK'
