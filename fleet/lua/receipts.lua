-- Many receipts in one call: a pipeline of SETs costs a busy gateway ten times the CPU.
-- KEYS one per receipt; ARGV 2 ttl in seconds, 3… the receipts
for i, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[i + 2], 'EX', ARGV[2])
end
return #KEYS
