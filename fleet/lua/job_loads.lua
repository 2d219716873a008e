-- A load of the model failed: the jobs that wait for it have waited through one more. Leader only.
-- KEYS 1 leader, 2 lease, 3.. hashes; ARGV 2 owner, 3 term, 4 mark of this load, then the jobs
-- -> those that waited through as many as they may, or -1 when the term is over
local now = clock()
if not leads(KEYS[1], ARGV[2], ARGV[3], now) then return -1 end
go_on_when_full(KEYS[2])
local over = {}
for i = 3, #KEYS do
  local t = redis.call('HMGET', KEYS[i], 'state', 'loads', 'max_loads', 'load')
  if t[1] == 'queued' then
    local loads = tonumber(t[2])
    if t[4] ~= ARGV[4] then
      loads = loads + 1
      redis.call('HSET', KEYS[i], 'loads', loads, 'load', ARGV[4])
    end
    if loads >= tonumber(t[3]) then over[#over + 1] = ARGV[i + 2] end
  end
end
return over
