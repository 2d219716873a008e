-- Put after _lib.lua before the scripts of jobs. Keys of a job's places always come as KEYS[1..19]: the first five are those
-- of a ticket (T_HASH … T_SINCE, with the model's `since` of jobs), then these.

local J_SPEC, J_BODY, J_RESULT, J_OUT, J_IDEM, J_STORE, J_LIST = 6, 7, 8, 9, 10, 11, 12
local J_DUE, J_ENDED, J_HOOKS, J_OUTBOX, J_BELL, J_PULSE, J_DEMAND = 13, 14, 15, 16, 17, 18, 19
local OUT_KEPT_MS = 1800000  -- chunks outlive the end this long
local SPARE_MS = 86400000    -- Redis forgets an ended job by itself this long after the leader should have
local OVERHEAD = 1024        -- bytes counted for each job beside its body

-- What is kept, in bytes, and how many jobs have not ended: for the tenant and in all.
local function charge(store, tenant, bytes, jobs)
  local changes = {{'b', bytes}, {'b=' .. tenant, bytes}, {'n=' .. tenant, jobs}}
  for _, change in ipairs(changes) do
    if change[2] ~= 0 and redis.call('HINCRBY', store, change[1], num(change[2])) <= 0 then
      redis.call('HDEL', store, change[1])
    end
  end
end

local JOB_FIELDS = {
  'state', 'tenant', 'model', 'owner', 'attempt', 'spent', 'max_attempts', 'loads', 'max_loads', 'score', 'start', 'epoch',
  'created', 'due', 'retention', 'hook', 'cancel', 'seq', 'bytes', 'body', 'out', 'last', 'chain',
}

-- The job at KEYS[T_HASH], numbers as text; nil where there is none.
local function job()
  local values = redis.call('HMGET', KEYS[T_HASH], unpack(JOB_FIELDS))
  if not values[1] then return nil end
  local j = {}
  for i, field in ipairs(JOB_FIELDS) do j[field] = values[i] end
  return j
end

-- Does it wait where KEYS say? The caller looked for its place before, and it may have been moved to another model since.
local function waits_here(j, id) return j and j.state == 'queued' and redis.call('ZSCORE', KEYS[T_READY], id) end

-- The fence of every write of a worker.
local function holds(j, owner, attempt)
  return j and j.state == 'in_progress' and j.owner == owner and j.attempt == attempt
end

-- Has the worker that runs it been silent for too long?
local function lease_over(j, id, now, grace)
  return j and j.state == 'in_progress' and not grace and tonumber(redis.call('ZSCORE', KEYS[T_LEASE], id) or 0) <= now
end

local function ended_entry(kind, id, bytes, tenant) return table.concat({kind, id, bytes, tenant}, '|') end

-- Nothing is left. KEYS of job_forget and job_delete.
local function forget(id, tenant)
  local out = redis.call('HGET', KEYS[5], 'out')
  if out and redis.call('ZREM', KEYS[1], ended_entry('o', id, out, tenant)) == 1 then
    charge(KEYS[2], tenant, -tonumber(out), 0)
  end
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
  for i = 5, #KEYS do redis.call('DEL', KEYS[i]) end
end

-- The one terminal write: out of every place, the body away, a time to live for all that is left.
local function conclude(id, j, state, now, code, message, result)
  redis.call('ZREM', KEYS[T_LEASE], id)
  unqueue(KEYS[T_READY], KEYS[T_VT], KEYS[T_SINCE], id)
  redis.call('ZREM', KEYS[J_DUE], id)
  redis.call('DEL', KEYS[J_BODY])
  local kept, out = tonumber(j.retention), tonumber(j.out)
  local change = #result - tonumber(j.body)
  local bytes = tonumber(j.bytes) + change
  local expires = now + kept
  redis.call('HDEL', KEYS[T_HASH], 'owner', 'grant', 'body')
  redis.call('HSET', KEYS[T_HASH], 'state', state, 'ended', num(now), 'expires', num(expires), 'result', #result,
    'bytes', num(bytes), 'code', code, 'message', message)
  if #result > 0 then redis.call('SET', KEYS[J_RESULT], result, 'PX', num(kept + SPARE_MS)) end
  -- Whoever reads the output learns here that nothing follows.
  redis.call('XADD', KEYS[J_OUT], j.attempt .. '-' .. num(tonumber(j.seq) + 1), 'end', state)
  local out_kept = math.min(OUT_KEPT_MS, kept)
  redis.call('PEXPIRE', KEYS[J_OUT], num(out_kept))
  for _, key in ipairs({KEYS[T_HASH], KEYS[J_SPEC], KEYS[J_IDEM]}) do redis.call('PEXPIRE', key, num(kept + SPARE_MS)) end
  charge(KEYS[J_STORE], j.tenant, change, -1)
  -- What the sweep must know even when Redis has forgotten the job.
  if out > 0 then
    redis.call('ZADD', KEYS[J_ENDED], num(now + out_kept), ended_entry('o', id, num(out), j.tenant))
  end
  redis.call('ZADD', KEYS[J_ENDED], num(expires), ended_entry('j', id, num(bytes - out), j.tenant))
  announce(KEYS[J_HOOKS], KEYS[J_OUTBOX], id, j.hook, state, now)
end

-- A new job in its place. ARGV 2 id, 3 model, 4 tenant, 5 band, 6 spec, 7 body, 8 hash of the client's body or '' without an
-- idempotency key, 9 start deadline or '', 10 max attempts, 11 max loads, 12 retention ms, 13 webhook events or '',
-- 14 what names the idempotency key or '', 15.. bounds of bytes per tenant, bytes in all, jobs per tenant

-- Why it cannot be: an answer for the caller, or nil.
local function refusal(id)
  local known = redis.call('HGET', KEYS[T_HASH], 'tenant')
  if known then return {known == ARGV[4] and 'SAME' or 'CONFLICT', id} end
  if ARGV[8] ~= '' then
    local before = redis.call('GET', KEYS[J_IDEM])
    if before then
      local same, digest = string.match(before, '^(.-)|(.*)$')
      return {digest == ARGV[8] and 'SAME' or 'CONFLICT', same}
    end
  end
  local bytes = #ARGV[6] + #ARGV[7] + OVERHEAD
  local kept = redis.call('HMGET', KEYS[J_STORE], 'b=' .. ARGV[4], 'b', 'n=' .. ARGV[4])
  if tonumber(kept[1] or 0) + bytes > tonumber(ARGV[15]) then return {'TENANT_BYTES', kept[1] or '0'} end
  if tonumber(kept[2] or 0) + bytes > tonumber(ARGV[16]) then return {'BYTES', kept[2] or '0'} end
  if tonumber(kept[3] or 0) >= tonumber(ARGV[17]) then return {'TENANT_JOBS', kept[3] or '0'} end
  return nil
end

local function create(id, created, score, start, epoch)
  local bytes = #ARGV[6] + #ARGV[7] + OVERHEAD
  -- Full of memory, Redis refuses this first write, and nothing has changed.
  redis.call('HSET', KEYS[T_HASH], 'state', 'queued', 'model', ARGV[3], 'tenant', ARGV[4], 'gateway', JOB, 'band', ARGV[5],
    'score', score, 'start', start, 'epoch', epoch, 'created', num(created), 'attempt', 0, 'spent', 0, 'loads', 0, 'seq', 0,
    'run', 0, 'chunks', 0,    'max_attempts', ARGV[10], 'max_loads', ARGV[11], 'retention', ARGV[12], 'bytes', bytes, 'body', #ARGV[7], 'out', 0)
  redis.call('SET', KEYS[J_SPEC], ARGV[6])
  redis.call('SET', KEYS[J_BODY], ARGV[7])
  if ARGV[8] ~= '' then
    redis.call('SET', KEYS[J_IDEM], id .. '|' .. ARGV[8])
    redis.call('HSET', KEYS[T_HASH], 'idem', ARGV[14])
  end
  if ARGV[9] ~= '' then
    redis.call('HSET', KEYS[T_HASH], 'due', ARGV[9])
    redis.call('ZADD', KEYS[J_DUE], ARGV[9], id)
  end
  if ARGV[13] ~= '' then redis.call('HSET', KEYS[T_HASH], 'hook', ARGV[13]) end
  redis.call('ZADD', KEYS[T_READY], score, id)
  redis.call('ZADD', KEYS[T_SINCE], num(created), id)
  local _, _, micros = clock()
  redis.call('ZADD', KEYS[J_LIST], num(micros + 1000 * tonumber(ARGV[1])), id) -- µs: the order within one ms counts, too
  charge(KEYS[J_STORE], ARGV[4], bytes, 1)
end
