-- Put before every script. Keys of a ticket's places always come as KEYS[1..8], see T_ below.

local GAP_MS = 2000      -- nobody showed a sign of life for this long: Redis was out of reach, not everybody dead
local GRACE_MS = 6000    -- then nothing expires for this long: two heartbeats of a gateway and some
local TIE = 1e-9         -- see enqueue: arrivals break ties, far below one request's cost after a million arrivals, too
local BELL_LENGTH = 1024
local MISSED_MS = 60000  -- events in a gateway's stream older than this are of no use to anybody
local JOB = '@job'       -- what a job has in the place of a gateway

local T_HASH, T_LEASE, T_READY, T_VT, T_SINCE, T_HELD, T_GW, T_PULSE = 1, 2, 3, 4, 5, 6, 7, 8

-- Numbers as Redis must read them: tostring() keeps 14 digits only.
local function num(x) return string.format('%.17g', x) end

-- now (with the tests' offset), the server's own ms (for stream ids), and µs.
local function clock()
  local t = redis.call('TIME')
  local real = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  return real + tonumber(ARGV[1]), real, tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- Out of memory, Redis refuses a script's writes until its first one went through that needs no memory. Everything but an
-- enqueue makes this its first write, so that heartbeats, grants and releases go on and the queue can empty itself.
local function go_on_when_full(zset) redis.call('ZREM', zset, '') end

-- A sign of life. True while nothing may expire.
local function pulse(key, now)
  local seen = redis.call('HMGET', key, 'at', 'grace')
  local at, grace = tonumber(seen[1] or now), tonumber(seen[2] or 0)
  if now - at > GAP_MS then grace = now + GRACE_MS end
  redis.call('HSET', key, 'at', num(now), 'grace', num(grace))
  return now < grace
end

-- A gateway that never was there, or said that it leaves (deadline 0), is dead even in grace.
local function alive(gateways, gateway, now, grace)
  local deadline = tonumber(redis.call('ZSCORE', gateways, gateway) or 0)
  return deadline > 0 and (grace or deadline >= now)
end

local function ring(bell, reason, model)
  redis.call('XADD', bell, 'MAXLEN', '~', BELL_LENGTH, '*', 'r', reason, 'm', model)
end

local function tell(grants, real, event)
  redis.call('XADD', grants, 'MINID', '~', num(real - MISSED_MS), '*', 'e', event)
  redis.call('PEXPIRE', grants, MISSED_MS)
end

-- Out of the waiting. An idle band starts afresh: its virtual time has nothing left to be fair about.
local function unqueue(ready, vt, since, id)
  redis.call('ZREM', ready, id)
  redis.call('ZREM', since, id)
  if redis.call('EXISTS', ready) == 0 then redis.call('DEL', vt) end
end

-- The next place of a tenant in a band; `price` is cost / weight. Changes nothing; take_place does.
local function next_place(vt, tenant, price, micros)
  local v = redis.call('HMGET', vt, '*', '#', '@', '=' .. tenant)
  local start = math.max(tonumber(v[1] or 0), tonumber(v[4] or 0))
  local arrivals = tonumber(v[2] or 0) + 1
  return {
    v = v[1] or '0', arrivals = arrivals, paid = tonumber(v[4] or 0),
    score = num(start + TIE * arrivals), start = start, epoch = v[3] or num(micros), finish = start + price,
  }
end

local function take_place(vt, tenant, place)
  redis.call('HSET', vt, '*', place.v, '#', num(place.arrivals), '@', place.epoch, '=' .. tenant, num(place.finish))
end

-- 0-based over all bands whose ready sets are KEYS[first] and after; 0 for a ticket that is nowhere.
local function position(id, ready, first)
  local before = 0
  for i = first, #KEYS do
    if KEYS[i] == ready then return before + (redis.call('ZRANK', ready, id) or 0) end
    before = before + redis.call('ZCARD', KEYS[i])
  end
  return before
end

-- Gone from every place.
local function remove(id)
  redis.call('ZREM', KEYS[T_LEASE], id)
  unqueue(KEYS[T_READY], KEYS[T_VT], KEYS[T_SINCE], id)
  redis.call('DEL', KEYS[T_HASH])
  redis.call('SREM', KEYS[T_HELD], id)
end

-- Is the ticket where the caller believes it is? Ids are random, so a difference means that it is another ticket's.
local function same(model, band, gateway)
  local t = redis.call('HMGET', KEYS[T_HASH], 'model', 'band', 'gateway')
  return t[1] == model and t[2] == band and t[3] == gateway
end

-- Score, start and epoch of a ticket that comes back to its old place. Within the epoch these are the old ones. If the band
-- was idle in between, its scores began anew and all that waits now came later: the place is the head, at V.
local function old_place(vt, score, start, epoch)
  local v = redis.call('HMGET', vt, '*', '@')
  if v[2] and v[2] == epoch then return score, start, epoch end
  local head = v[1] or '0'
  return head, head, v[2] or ''
end

local function leads(key, owner, term, now)
  local l = redis.call('HMGET', key, 'owner', 'term', 'deadline')
  return l[1] == owner and l[2] == term and tonumber(l[3]) >= now
end

-- Into the job's outbox, for the delivery loops of the gateways; `wanted` is what its client asked to be told of.
local OUTBOX_MS = 691200000  -- eight days: one longer than a result can be read
local function announce(hooks, outbox, id, wanted, event, now)
  if not wanted or not string.find(',' .. wanted .. ',', ',' .. event .. ',', 1, true) then return end
  redis.call('RPUSH', outbox, event .. ' ' .. num(now))
  redis.call('PEXPIRE', outbox, OUTBOX_MS)
  redis.call('ZADD', hooks, 'NX', num(now), id)
end

-- --- files: see fleet/files.py ---

local FILE_SLACK_MS = 86400000 -- a file is removed by the sweep when its time is over; its TTL is for a fleet that is off

-- What each file takes, by id, and the sums by tenant ('@') and in all ('*').
local function account(accounts, id, tenant, bytes)
  local before = redis.call('HGET', accounts, '=' .. id)
  local old = before and tonumber(before:match('^%d+')) or 0
  redis.call('HSET', accounts, '=' .. id, num(old + bytes) .. ':' .. tenant)
  redis.call('HINCRBY', accounts, '@' .. tenant, bytes)
  redis.call('HINCRBY', accounts, '*', bytes)
end

local function release(accounts, id)
  local before = redis.call('HGET', accounts, '=' .. id)
  if not before then return end
  local bytes, tenant = before:match('^(%d+):(.*)$')
  redis.call('HDEL', accounts, '=' .. id)
  if redis.call('HINCRBY', accounts, '@' .. tenant, -bytes) <= 0 then redis.call('HDEL', accounts, '@' .. tenant) end
  if redis.call('HINCRBY', accounts, '*', -bytes) <= 0 then redis.call('HDEL', accounts, '*') end
end

-- Whole, and to be seen by its tenant for `life` ms.
local function list_file(file, data, files, ends, id, created, now, life)
  redis.call('HSET', file, 'listed', 1, 'created', created, 'expires', num(now + life))
  redis.call('PEXPIRE', file, num(life + FILE_SLACK_MS))
  redis.call('PEXPIRE', data, num(life + FILE_SLACK_MS))
  redis.call('ZADD', files, created, id)
  redis.call('PEXPIRE', files, num(math.max(redis.call('PTTL', files), life + FILE_SLACK_MS)))
  redis.call('ZADD', ends, num(now + life), id)
end
