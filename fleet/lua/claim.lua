-- The next tickets of a model, in fair order: one of a gateway becomes a grant on its stream, a job is leased to the worker.
--
-- The caller has looked at the heads of the bands and names the tickets it saw as candidates, because only they can be in
-- KEYS. A head that is none of them ends the claim; with nothing granted the caller looks again.
--
-- Jobs of the job bands take at most as many offers as the caller says; one that was handed off from its gateway waits in an
-- interactive band and is served like its neighbours there.
--
-- KEYS 1 lease, 2 this claim's answer, 3 gateways, 4 pulse, 5 since, 6 since of jobs, 7 start deadlines, 8 hooks, then ready
--      of all bands, then their virtual times, then of each candidate its hash, and held and grants, or outbox and output
-- ARGV 2 model, 3 worker, 4 replica, 5 endpoint, 6 schema version, 7 bands, 8 offers n, 9 grant ttl, 10 margin,
--      11 ms to remember the answer, 12 boot, 13 most jobs, 14 interactive bands, 15 lease of a job, 16.. grant ids, then id and
--      gateway of each candidate
-- -> {'OK' | 'LOOK', {encoded grants}, waiting in interactive bands, highest waiting band or -1,
--     {{job, grant, attempt, deadline, created, attempts that count}}, waiting in job bands}
local now, real = clock()
local before = redis.call('GET', KEYS[2])
if before then return cmsgpack.unpack(before) end

go_on_when_full(KEYS[1])
local grace = pulse(KEYS[4], now)
local bands, offers = tonumber(ARGV[7]), tonumber(ARGV[8])
local most, interactive = tonumber(ARGV[13]), tonumber(ARGV[14])
local since, jobs_since = KEYS[5], KEYS[6]
local candidates = {}
local key, arg = 9 + 2 * bands, 16 + offers
while arg <= #ARGV do
  candidates[ARGV[arg]] = {gateway = ARGV[arg + 1], hash = KEYS[key], held = KEYS[key + 1], grants = KEYS[key + 2]}
  key, arg = key + 3, arg + 2
end

local granted, leases, blind = {}, {}, false

local function serve(vt, start)
  local v = tonumber(redis.call('HGET', vt, '*') or 0)
  if tonumber(start) > v then redis.call('HSET', vt, '*', start) end
  return ARGV[16 + #granted + #leases]
end

local function lease(ready, vt, id, c, start, created)
  local deadline = now + tonumber(ARGV[15])
  local grant = serve(vt, start)
  unqueue(ready, vt, jobs_since, id)
  redis.call('ZREM', KEYS[7], id)
  redis.call('ZADD', KEYS[1], num(deadline), id)
  local attempt = redis.call('HINCRBY', c.hash, 'attempt', 1)
  local spent = redis.call('HINCRBY', c.hash, 'spent', 1)
  redis.call('HSET', c.hash, 'state', 'in_progress', 'owner', ARGV[12], 'worker', ARGV[3], 'replica', ARGV[4], 'grant', grant,
    'started', num(now), 'seq', 0, 'run', 0, 'tokens', 0)
  if attempt == 1 then announce(KEYS[8], c.held, id, redis.call('HGET', c.hash, 'hook'), 'in_progress', now) end
  leases[#leases + 1] = {id, grant, attempt, deadline, tonumber(created), spent}
end

local from_job_bands = 0
for band = 1, bands do
  local ready, vt = KEYS[8 + band], KEYS[8 + bands + band]
  while #granted + #leases < offers and not blind do
    if band > interactive and from_job_bands >= most then break end
    local id = redis.call('ZRANGE', ready, 0, 0)[1]
    if not id then break end
    local c = candidates[id]
    local t = c and redis.call('HMGET', c.hash, 'gateway', 'start', 'created', 'state')
    if not c or (t[1] and t[1] ~= c.gateway) then
      blind = true
    elseif t[1] == JOB then
      lease(ready, vt, id, c, t[2], t[3])
      if band > interactive then from_job_bands = from_job_bands + 1 end
    elseif not t[1] or not alive(KEYS[3], c.gateway, now, grace) then
      unqueue(ready, vt, since, id)
      redis.call('ZREM', jobs_since, id)
      redis.call('DEL', c.hash)
      redis.call('SREM', c.held, id)
    else
      local grant = serve(vt, t[2])
      local event = cmsgpack.pack({
        type = 'grant', v = tonumber(ARGV[6]), ticket = id, model = ARGV[2], replica = ARGV[4], endpoint = ARGV[5],
        grant = grant, expires_ms = now + tonumber(ARGV[9]), waited_ms = now - tonumber(t[3]),
      })
      unqueue(ready, vt, since, id)
      redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[9]) + tonumber(ARGV[10])), id)
      redis.call('HSET', c.hash, 'state', 'granted', 'grant', grant, 'worker', ARGV[3], 'replica', ARGV[4])
      tell(c.grants, real, event)
      granted[#granted + 1] = event
    end
  end
end

local highest, waiting, waiting_jobs = -1, 0, 0
for band = bands, 1, -1 do
  local count = redis.call('ZCARD', KEYS[8 + band])
  if count > 0 then highest = band - 1 end
  if band > interactive then waiting_jobs = waiting_jobs + count else waiting = waiting + count end
end
local answer = {'OK', granted, waiting, highest, leases, waiting_jobs}
if blind and #granted + #leases == 0 then
  answer[1] = 'LOOK'
else
  redis.call('SET', KEYS[2], cmsgpack.pack(answer), 'PX', ARGV[11])
end
return answer
